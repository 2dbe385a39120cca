"""The ingress's routing beside those of peers."""
