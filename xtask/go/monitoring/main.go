// Checks files of deploy/monitoring by the types of those that read them. Dashboards (JSON) by the
// types that Grafana generates from its schema: no field that the schema lacks, none missing that it
// requires, no value of another type or out of its range. Objects (YAML) by the types of the
// Prometheus Operator: no unknown field, no value of another type.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	valid := len(os.Args) > 1
	for _, file := range os.Args[1:] {
		if err := check(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			valid = false
		}
	}
	if !valid {
		os.Exit(1)
	}
}

func check(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if filepath.Ext(file) == ".yaml" {
		return checkObject(text)
	}
	return checkDashboard(text)
}

func checkDashboard(text []byte) error {
	// This finds errors, but leaves panels out of what it reads. Without errors it returns an empty
	// list of them, which is not nil.
	err := new(dashboard.Dashboard).UnmarshalJSONStrict(text)
	if errs, ok := err.(cog.BuildErrors); err != nil && (!ok || len(errs) > 0) {
		return err
	}
	var read dashboard.Dashboard
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	if err := read.Validate(); err != nil {
		return err
	}
	for _, panel := range read.Panels {
		if panel.Panel == nil {
			continue
		}
		// The types take the options of a panel that they do not know as they are.
		if _, known := cog.ConfigForPanelcfgVariant(panel.Panel.Type); !known {
			return fmt.Errorf("Grafana has no panel %q", panel.Panel.Type)
		}
	}
	return checkEnums("dashboard", reflect.ValueOf(read))
}
