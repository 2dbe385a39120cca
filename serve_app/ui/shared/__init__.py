"""Scripts and styles that the page shares with the reports of load tests and replays."""
