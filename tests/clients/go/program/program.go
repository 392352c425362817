// Package program is what the Go consumer programs share: the command line, JSON lines out, and when
// to stop. The form of both is told in tests/clients/__init__.py.
package program

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// FetchMaxWait is short, so that a consumer at the end of its partitions makes many fetches in a test of seconds.
const FetchMaxWait = 100 * time.Millisecond

// CommitInterval is that of a member of a group.
const CommitInterval = time.Second

// flushEvery bounds how long a line stays in the buffer.
const flushEvery = 50 * time.Millisecond

// Options is the command line.
type Options struct {
	Bootstrap []string
	Assign    []Place
	// Subscribe has the topics of a member of Group.
	Subscribe []string
	Group     string
	Committed bool
	// Suffix ends the client id: it declares a lane.
	Suffix string
}

// Place is a partition of a topic.
type Place struct {
	Topic     string
	Partition int
}

// Header is one header of a record; a nil value is null.
type Header struct {
	Name  string
	Value []byte
}

// Record is what a client delivered; a nil key or value is null.
type Record struct {
	Topic       string
	Partition   int
	Offset      int64
	TimestampMs int64
	Key         []byte
	Value       []byte
	Headers     []Header
}

// Parse reads the command line.
func Parse() Options {
	bootstrap := flag.String("bootstrap", "", "HOST:PORT[,...]")
	assign := flag.String("assign", "", "TOPIC:PARTITIONS[,...]")
	subscribe := flag.String("subscribe", "", "TOPIC[,...], as a member of a group")
	group := flag.String("group", "", "the consumer group")
	isolation := flag.String("isolation", "read_uncommitted", "read_uncommitted or read_committed")
	suffix := flag.String("suffix", "", "of the client id")
	flag.Parse()
	options := Options{
		Bootstrap: strings.Split(*bootstrap, ","),
		Committed: *isolation == "read_committed",
		Suffix:    *suffix,
		Group:     *group,
	}
	if *subscribe != "" {
		options.Subscribe = strings.Split(*subscribe, ",")
		return options
	}
	for _, item := range strings.Split(*assign, ",") {
		topic, number, _ := strings.Cut(item, ":")
		partitions, err := strconv.Atoi(number)
		Check(err)
		for partition := range partitions {
			options.Assign = append(options.Assign, Place{topic, partition})
		}
	}
	return options
}

// Check ends the program on an error.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func hexOrNull(data []byte) any {
	if data == nil {
		return nil
	}
	return hex.EncodeToString(data)
}

func digestOrNull(data []byte) any {
	if data == nil {
		return nil
	}
	sum := sha256.Sum256(data)
	return fmt.Sprintf("%d:%s", len(data), hex.EncodeToString(sum[:]))
}

func line(record Record) map[string]any {
	headers := make([][2]any, 0, len(record.Headers))
	for _, header := range record.Headers {
		headers = append(headers, [2]any{header.Name, hexOrNull(header.Value)})
	}
	return map[string]any{
		"kind": "record", "topic": record.Topic, "partition": record.Partition, "offset": record.Offset,
		"timestamp": record.TimestampMs, "key": hexOrNull(record.Key), "value": digestOrNull(record.Value),
		"headers": headers,
	}
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	return "unknown"
}

// stopped is closed when standard input brings a line or ends.
func stopped() <-chan struct{} {
	stop := make(chan struct{})
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		close(stop)
	}()
	return stop
}

// Print writes what comes, and what the client told as an error, until told to stop.
func Print(client, module string, records <-chan Record, errors <-chan error, close func()) {
	buffered := bufio.NewWriter(os.Stdout)
	out := json.NewEncoder(buffered)
	Check(out.Encode(map[string]any{"kind": "start", "client": client, "version": version(module)}))
	stop, flush := stopped(), time.Tick(flushEvery)
	for done := false; !done; {
		select {
		case record := <-records:
			Check(out.Encode(line(record)))
		case err := <-errors:
			Check(out.Encode(map[string]any{"kind": "error", "code": fmt.Sprintf("%T", err), "text": err.Error()}))
		case <-flush:
			Check(buffered.Flush())
		case <-stop:
			done = true
		}
	}
	close()
	Check(out.Encode(map[string]any{"kind": "end"}))
	Check(buffered.Flush())
}
