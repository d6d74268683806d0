// Asks for pages through a proxy, one after another, and prints each with whether its connection was
// new: transport PROXY URL...
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
)

func main() {
	proxy, err := url.Parse(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	for _, page := range os.Args[2:] {
		if err := get(client, page); err != nil {
			log.Fatal(err)
		}
	}
}

func get(client *http.Client, page string) error {
	request, err := http.NewRequest(http.MethodGet, page, nil)
	if err != nil {
		return err
	}
	connection := "new"
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if got.Reused {
			connection = "reused"
		}
	}}
	answer, err := client.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", said, connection)
	return nil
}
