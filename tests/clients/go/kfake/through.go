package kfake

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

type gateway struct {
	address string
	stdin   io.Closer
	command *exec.Cmd
}

var (
	gatewaysMu sync.Mutex
	gateways   = make(map[*Cluster]gateway)
)

// NewCluster starts a cluster and, if $FETCHGATE_BEFORE has the command of one, a gateway before it, which is ready
// before a test sets its first deadline.
func NewCluster(opts ...Opt) (*Cluster, error) {
	c, err := newClusterAlone(opts...)
	words := strings.Fields(os.Getenv("FETCHGATE_BEFORE"))
	if err != nil || len(words) == 0 {
		return c, err
	}
	before, err := start(append(words, strings.Join(c.listenAddrs(), ",")))
	if err != nil {
		c.closeAlone()
		return nil, err
	}
	gatewaysMu.Lock()
	defer gatewaysMu.Unlock()
	gateways[c] = before
	return c, nil
}

func start(words []string) (gateway, error) {
	command := exec.Command(words[0], words[1:]...)
	command.Dir = os.Getenv("FETCHGATE_FOLDER")
	command.Stderr = os.Stderr
	stdin, failed := command.StdinPipe()
	stdout, broken := command.StdoutPipe()
	if err := errors.Join(failed, broken, command.Start()); err != nil {
		return gateway{}, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	return gateway{strings.TrimSpace(line), stdin, command}, err
}

// Close ends a cluster, and before that its gateway, once this has told what it counted.
func (c *Cluster) Close() {
	gatewaysMu.Lock()
	before, ok := gateways[c]
	delete(gateways, c)
	gatewaysMu.Unlock()
	if ok {
		before.stdin.Close()
		before.command.Wait()
	}
	c.closeAlone()
}

// ListenAddrs returns the address of the gateway before a cluster, or those of its brokers.
func (c *Cluster) ListenAddrs() []string {
	gatewaysMu.Lock()
	defer gatewaysMu.Unlock()
	if before, ok := gateways[c]; ok {
		return []string{before.address}
	}
	return c.listenAddrs()
}
