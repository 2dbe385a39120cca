"""Scripts and styles that the HTML reports have in common."""
