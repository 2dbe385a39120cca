"""Programs for those who develop and release Tideserve; nothing here is part of what serves."""
