"""What a scaling decision costs Ray Serve's controller. See README.md."""
