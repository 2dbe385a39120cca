"""What writes the generated parts of the chart. Nothing here is needed to install it."""
