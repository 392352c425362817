// Command franz consumes with twmb/franz-go, which makes fetch sessions of its own.
package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"fetchgate/tests/clients/program"
)

func main() {
	options := program.Parse()
	offsets := map[string]map[int32]kgo.Offset{}
	for _, place := range options.Assign {
		if offsets[place.Topic] == nil {
			offsets[place.Topic] = map[int32]kgo.Offset{}
		}
		offsets[place.Topic][int32(place.Partition)] = kgo.NewOffset().AtStart()
	}
	isolation := kgo.ReadUncommitted()
	if options.Committed {
		isolation = kgo.ReadCommitted()
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(options.Bootstrap...),
		kgo.ClientID(options.Named("franz-go")),
		kgo.FetchIsolationLevel(isolation),
		kgo.FetchMaxWait(program.FetchMaxWait),
	}
	if options.Group == "" {
		settings = append(settings, kgo.ConsumePartitions(offsets))
	} else {
		settings = append(settings,
			kgo.ConsumerGroup(options.Group),
			kgo.ConsumeTopics(options.Subscribe...),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.AutoCommitInterval(program.CommitInterval),
		)
		if options.Ranges {
			settings = append(settings, kgo.Balancers(kgo.RangeBalancer()))
		}
		if options.Session != 0 {
			settings = append(settings, kgo.SessionTimeout(options.Session), kgo.HeartbeatInterval(options.Session/6))
		}
	}
	client, err := kgo.NewClient(settings...)
	program.Check(err)

	program.Start("franz-go", "github.com/twmb/franz-go")
	errors := make(chan error)
	go poll(client, errors)
	program.Wait(errors, client.Close)
}

func poll(client *kgo.Client, errors chan<- error) {
	for {
		fetches := client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		fetches.EachError(func(_ string, _ int32, err error) { errors <- err })
		fetches.EachRecord(func(record *kgo.Record) { program.Process(convert(record)) })
	}
}

func convert(record *kgo.Record) program.Record {
	var headers []program.Header
	for _, header := range record.Headers {
		headers = append(headers, program.Header{Name: header.Key, Value: header.Value})
	}
	return program.Record{
		Topic: record.Topic, Partition: int(record.Partition), Offset: record.Offset,
		TimestampMs: record.Timestamp.UnixMilli(), Key: record.Key, Value: record.Value, Headers: headers,
	}
}
