"""The parts that reports share: colours, numbers for JSON, pages, and pictures."""
