// Command outbox-cdc forwards committed rows of a PostgreSQL outbox table to NATS
// JetStream, in order and without loss.
package main

import (
	"os"

	"github.com/outbox-cdc/outbox-cdc/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr, os.Environ()))
}
