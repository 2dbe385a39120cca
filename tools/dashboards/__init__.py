"""The Grafana dashboards of the chart, written by `python -m tools.dashboards`.

One module a dashboard (`service`, `autoscaling`, `engine`, `cost`); they are built from PromQL (`promql`),
panels (`panels`) and what surrounds them (`dashboard`). The JSON lies in `helm/tideserve/files/dashboards/`.
"""
