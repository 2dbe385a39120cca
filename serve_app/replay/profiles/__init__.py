"""Profiles that come with Tideserve, one file each; `serve_app.replay.profile_files` reads them."""
