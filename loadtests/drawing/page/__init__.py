"""Scripts and styles that the HTML pages have in common."""
