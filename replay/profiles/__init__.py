"""Profiles that come with Tideserve, one file each; `replay.profile` reads them."""
