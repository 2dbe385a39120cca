"""The compiled part of the replay: every engine step of every replica, and the way of every request."""
