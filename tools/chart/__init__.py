"""`python -m tools.chart` writes the values schema, the chart's README and the manifests in `k8s/`."""
