// Reads requests as an API server does, with the packages that an API server is made of, and prints
// what it reads: one JSON object a line for each line of its standard input.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes/scheme"
)

// question is a request: its method, its target with the query, and its Accept header.
type question struct {
	Method string `json:"method"`
	Target string `json:"target"`
	Accept string `json:"accept"`
}

// reading is what an API server does with it. An error is a request that it refuses.
type reading struct {
	Error       string `json:"error"`
	IsResource  bool   `json:"is_resource"`
	Path        string `json:"path"`
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Version     string `json:"version"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`

	LabelSelector   string `json:"label_selector"`
	FieldSelector   string `json:"field_selector"`
	Limit           int64  `json:"limit"`
	Continue        string `json:"continue"`
	ResourceVersion string `json:"resource_version"`
	VersionMatch    string `json:"version_match"`
	Bookmarks       bool   `json:"bookmarks"`
	InitialEvents   bool   `json:"initial_events"`
	TimeoutSeconds  *int64 `json:"timeout_seconds"`

	MediaType string `json:"media_type"`
	Shape     string `json:"shape"`
	// Rows is the includeObject of a table.
	Rows string `json:"rows"`
}

func main() {
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(in)
	for {
		var asked question
		err := decoder.Decode(&asked)
		if err == io.EOF {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(read(asked)); err != nil {
			log.Fatal(err)
		}
	}
}

func read(asked question) reading {
	target, err := url.ParseRequestURI(asked.Target)
	if err != nil {
		return reading{Error: err.Error()}
	}
	req := &http.Request{Method: asked.Method, URL: target, Header: http.Header{}}
	if asked.Accept != "" {
		req.Header.Set("Accept", asked.Accept)
	}
	factory := request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
	info, err := factory.NewRequestInfo(req)
	if err != nil {
		return reading{Error: err.Error()}
	}
	its := reading{
		IsResource:  info.IsResourceRequest,
		Path:        info.Path,
		Verb:        info.Verb,
		Group:       info.APIGroup,
		Version:     info.APIVersion,
		Resource:    info.Resource,
		Subresource: info.Subresource,
		Namespace:   info.Namespace,
		Name:        info.Name,
	}
	if !info.IsResourceRequest {
		return its
	}
	if info.Verb == "list" || info.Verb == "watch" {
		if err := its.readOptions(target.Query(), info); err != nil {
			its.Error = err.Error()
			return its
		}
	}
	if info.Verb == "list" || info.Verb == "watch" || info.Verb == "get" {
		if err := its.negotiate(req); err != nil {
			its.Error = err.Error()
		}
	}
	return its
}

// readOptions does what ListResource does before it asks the storage. What it reads is without the
// defaults, which the hub leaves to the API server.
func (its *reading) readOptions(query url.Values, info *request.RequestInfo) error {
	opts := metainternalversion.ListOptions{}
	err := internalscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, &opts)
	if err != nil {
		return err
	}
	if opts.LabelSelector != nil {
		its.LabelSelector = opts.LabelSelector.String()
	}
	if opts.FieldSelector != nil {
		its.FieldSelector = opts.FieldSelector.String()
	}
	its.Limit = opts.Limit
	its.Continue = opts.Continue
	its.ResourceVersion = opts.ResourceVersion
	its.VersionMatch = string(opts.ResourceVersionMatch)
	its.Bookmarks = opts.AllowWatchBookmarks
	its.InitialEvents = opts.SendInitialEvents != nil && *opts.SendInitialEvents
	its.TimeoutSeconds = opts.TimeoutSeconds
	metainternalversion.SetListOptionsDefaults(&opts, true)
	if errs := internalvalidation.ValidateListOptions(&opts, true); len(errs) > 0 {
		return errs.ToAggregate()
	}
	return nil
}

// negotiate does what the handlers of a built-in resource do.
func (its *reading) negotiate(req *http.Request) error {
	scope := &handlers.RequestScope{
		Serializer:       scheme.Codecs,
		TableConvertor:   rest.NewDefaultTableConvertor(schema.GroupResource{Resource: "pods"}),
		MetaGroupVersion: metav1.SchemeGroupVersion,
	}
	options, info, err := negotiation.NegotiateOutputMediaType(req, scope.Serializer, scope)
	if err != nil {
		return err
	}
	its.MediaType = info.MediaType
	if options.Convert == nil {
		return nil
	}
	its.Shape = options.Convert.String()
	if options.Convert.Kind == "Table" {
		table := &metav1.TableOptions{}
		err := internalscheme.ParameterCodec.DecodeParameters(req.URL.Query(), metav1.SchemeGroupVersion, table)
		if err != nil {
			return err
		}
		its.Rows = string(table.IncludeObject)
	}
	return nil
}
