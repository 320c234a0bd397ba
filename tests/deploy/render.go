// Renders a Helm chart into files: the part of Helm that a chart without dependencies needs.
//
//	render CHART VALUES DIRECTORY
//
// VALUES is merged over the chart's values.yaml. Every template that yields something becomes a file.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type object = map[string]interface{}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(path string) object {
	text, err := os.ReadFile(path)
	check(err)
	value := object{}
	check(yaml.UnmarshalStrict(text, &value))
	return value
}

// merge lays the values of `over` on those of `under`, table by table.
func merge(under, over object) object {
	for key, value := range over {
		inner, isTable := value.(object)
		before, wasTable := under[key].(object)
		if isTable && wasTable {
			under[key] = merge(before, inner)
		} else {
			under[key] = value
		}
	}
	return under
}

func functions(root *template.Template) template.FuncMap {
	all := sprig.TxtFuncMap()
	all["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	all["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	all["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := root.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	all["tpl"] = func(text string, data interface{}) (string, error) {
		inner, err := template.Must(root.Clone()).New("tpl").Parse(text)
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		err = inner.Execute(&out, data)
		return out.String(), err
	}
	return all
}

func main() {
	chart, values, into := os.Args[1], os.Args[2], os.Args[3]
	about := read(filepath.Join(chart, "Chart.yaml"))
	data := object{
		"Values":  merge(read(filepath.Join(chart, "values.yaml")), read(values)),
		"Chart":   object{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Release": object{"Name": "release", "Namespace": "default", "Service": "Helm"},
	}
	root := template.New("").Option("missingkey=error")
	root.Funcs(functions(root))
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(err)
		_, err = root.New(filepath.Base(file)).Parse(string(text))
		check(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var out bytes.Buffer
		check(root.ExecuteTemplate(&out, name, data))
		if text := strings.TrimSpace(out.String()); text != "" {
			check(os.WriteFile(filepath.Join(into, name), []byte(text+"\n"), 0o644))
		}
	}
}
