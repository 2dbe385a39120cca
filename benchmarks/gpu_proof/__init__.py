"""One command that measures Tideserve on a GPU, stage by stage; see README.md beside this file."""
