// One end of gRPC as grpc-go makes it, for kits/loop_grpc/tests/go_end.py: a client whose calls are made as standard input says,
// or a server of test.Echo. What happens is said on standard output. It ends when standard input does.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
)

func main() {
	var options Options
	flag.StringVar(&options.address, "address", "", "of the server to call; none: serve test.Echo")
	flag.IntVar(&options.mostBytes, "most-bytes", 4<<20, "of a message that is received")
	flag.DurationVar(&options.age, "age", 0, "of a served connection, until it says GOAWAY; 0: none")
	flag.DurationVar(&options.keepalive, "keepalive", 0, "how often a peer that is silent is pinged; 0: never")
	flag.StringVar(&options.cert, "cert", "", "file of the client's certificate")
	flag.StringVar(&options.key, "key", "", "file of its key")
	flag.StringVar(&options.ca, "ca", "", "file of the CA of servers; none: plaintext")
	flag.StringVar(&options.name, "name", "", "that the server's certificate bears")
	flag.Parse()
	log.SetFlags(0)
	run := serve
	if options.address != "" {
		run = call
	}
	if err := run(options, NewPipe(os.Stdin, os.Stdout)); err != nil {
		log.Fatal(fmt.Errorf("grpc-go's end: %w", err))
	}
}
