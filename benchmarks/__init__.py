"""Side-by-side measurements of Tideserve against its peers."""
