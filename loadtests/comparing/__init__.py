"""What `compare` is made of: the measures, and how much of their differences is noise."""
