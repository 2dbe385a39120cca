"""Profiles that come with Tideserve, one file each; `replay.profile_files` reads them."""
