// Package main is the part of flannel that asks the API server, in the order of its own program, with
// the backend `host-gw`, and without routes. Its own main package has every backend: one of them
// needs the SDK of a cloud, which not every module proxy has.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
)

// Arguments: the file of the network, the file that it writes, and the node's public address.
func main() {
	network, written, address := os.Args[1], os.Args[2], os.Args[3]
	ctx := context.Background()
	manager, err := kube.NewSubnetManager(ctx, "", "", "flannel.alpha.coreos.com", network, true)
	check(err)
	config, err := manager.GetNetworkConfig(ctx)
	check(err)
	public, err := ip.ParseIP4(address)
	check(err)
	acquired, err := manager.AcquireLease(ctx, &lease.LeaseAttrs{
		PublicIP: public, BackendType: "host-gw", BackendData: json.RawMessage("null"),
	})
	check(err)
	check(manager.HandleSubnetFile(written, config, false, acquired.Subnet, acquired.IPv6Subnet, 1500))
	log.Printf("wrote %s", written)
	if err := manager.CompleteLease(ctx, acquired, &sync.WaitGroup{}); err != nil {
		log.Printf("the node is not told that its network is there: %v", err)
	}
	follow(ctx, manager, acquired)
}

// The leases of all nodes, as they change.
func follow(ctx context.Context, manager subnet.Manager, own *lease.Lease) {
	received := make(chan []lease.Event)
	go subnet.WatchLeases(ctx, manager, own, received)
	for events := range received {
		for _, event := range events {
			log.Printf("%v %s", event.Type, event.Lease.Subnet)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
