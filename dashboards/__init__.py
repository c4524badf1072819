"""Grafana dashboards, Prometheus rules and provisioning files, generated from the catalogue and the causes."""
