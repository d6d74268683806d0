// Runs an informer of client-go on the pods of a namespace, through the hub, and prints what its
// handlers see: one JSON object a line. It ends when its standard input does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// line is what is printed: `add`, `update`, `delete`, `synced` or `error`.
type line struct {
	Event string `json:"event"`
	Name  string `json:"name,omitempty"`
	Text  string `json:"text,omitempty"`
}

func main() {
	server := flag.String("server", "", "address of the hub")
	authority := flag.String("authority", "", "file of the hub's authority (PEM)")
	certificate := flag.String("certificate", "", "file of a client certificate (PEM)")
	key := flag.String("key", "", "file of its key (PEM)")
	namespace := flag.String("namespace", "default", "whose pods are watched")
	flag.Parse()
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		log.Fatal("this client-go does not stream its lists by default")
	}
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: *server,
		// The fake API server of the tests speaks nothing else.
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/json",
			AcceptContentTypes: "application/json",
		},
		TLSClientConfig: rest.TLSClientConfig{
			CAFile:   *authority,
			CertFile: *certificate,
			KeyFile:  *key,
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	pods := factory.Core().V1().Pods().Informer()
	printer := &printer{out: json.NewEncoder(os.Stdout)}
	err = pods.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		printer.print(line{Event: "error", Text: err.Error()})
	})
	if err != nil {
		log.Fatal(err)
	}
	registration, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { printer.print(line{Event: "add", Name: name(pod)}) },
		UpdateFunc: func(_, pod any) { printer.print(line{Event: "update", Name: name(pod)}) },
		DeleteFunc: func(pod any) { printer.print(line{Event: "delete", Name: name(pod)}) },
	})
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	go func() {
		if cache.WaitForCacheSync(stop, registration.HasSynced) {
			printer.print(line{Event: "synced"})
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(stop)
	factory.Shutdown()
}

func name(object any) string {
	switch object := object.(type) {
	case *corev1.Pod:
		return object.Name
	case cache.DeletedFinalStateUnknown:
		return object.Key + " (found missing)"
	default:
		return "?"
	}
}

// printer writes whole lines from several goroutines.
type printer struct {
	lock sync.Mutex
	out  *json.Encoder
}

func (p *printer) print(line line) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if err := p.out.Encode(line); err != nil {
		log.Fatal(err)
	}
}
