"""What one front end and one ingress replica carry when the engine core costs nothing. See README.md."""
