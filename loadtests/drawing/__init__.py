"""What reports share: colours, numbers as they are read, and the parts of pages."""
