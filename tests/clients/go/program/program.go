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
	"sync"
	"time"
)

// FetchMaxWait is short, so that a consumer at the end of its partitions makes many fetches in a test of seconds.
// With CONSUME_USUAL in the environment, it is the usual one.
var FetchMaxWait = fetchMaxWait()

func fetchMaxWait() time.Duration {
	if _, usual := os.LookupEnv("CONSUME_USUAL"); usual {
		return 500 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// CommitInterval is that of a member of a group.
const CommitInterval = time.Second

var (
	out     = json.NewEncoder(os.Stdout)
	writing sync.Mutex
)

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
	// ClientID is the whole of it; empty: the program's own, with the suffix.
	ClientID string
	// Ranges asks for the strategy that all clients have.
	Ranges bool
	// Session is the timeout of a member; 0: that of the client.
	Session time.Duration
}

// Named gives the client id of a program that calls itself so.
func (options Options) Named(own string) string {
	if options.ClientID != "" {
		return options.ClientID
	}
	return own + options.Suffix
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
	clientID := flag.String("client-id", "", "the whole client id")
	strategy := flag.String("strategy", "", "range, or empty for that of the client")
	sessionMs := flag.Int("session-ms", 0, "session timeout of a member")
	flag.Parse()
	options := Options{
		Bootstrap: strings.Split(*bootstrap, ","),
		Committed: *isolation == "read_committed",
		Suffix:    *suffix,
		Group:     *group,
		ClientID:  *clientID,
		Ranges:    *strategy != "",
		Session:   time.Duration(*sessionMs) * time.Millisecond,
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

func emit(line map[string]any) {
	writing.Lock()
	defer writing.Unlock()
	Check(out.Encode(line))
}

// Process prints a record. When it returns the line is written, and the record may be committed.
func Process(record Record) {
	emit(line(record))
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

// Start prints which client it is. It comes before all records.
func Start(client, module string) {
	emit(map[string]any{"kind": "start", "client": client, "version": version(module)})
}

// Wait prints what the client told as an error, until told to stop.
func Wait(errors <-chan error, close func()) {
	stop := stopped()
	for done := false; !done; {
		select {
		case err := <-errors:
			emit(map[string]any{"kind": "error", "code": fmt.Sprintf("%T", err), "text": err.Error()})
		case <-stop:
			done = true
		}
	}
	close()
	emit(map[string]any{"kind": "end"})
}
