package main

import (
	"fmt"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

// checkObject reads an object into the type that the Prometheus Operator has for its kind.
func checkObject(text []byte) error {
	var of struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal(text, &of); err != nil {
		return err
	}
	switch of.Kind {
	case "PodMonitor":
		return yaml.UnmarshalStrict(text, new(monitoring.PodMonitor))
	case "PrometheusRule":
		return yaml.UnmarshalStrict(text, new(monitoring.PrometheusRule))
	}
	return fmt.Errorf("the Prometheus Operator has no kind %q", of.Kind)
}
