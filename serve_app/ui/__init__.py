"""The page of a running server, and the scripts, styles and colours that it shares with reports."""
