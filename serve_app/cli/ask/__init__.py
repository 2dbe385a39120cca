"""One question to a running application, with all that happens until the last token."""
