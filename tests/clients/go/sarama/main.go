// Command sarama consumes with IBM/sarama, which makes no fetch sessions.
package main

import (
	"github.com/IBM/sarama"

	"fetchgate/tests/clients/program"
)

func main() {
	options := program.Parse()
	config := sarama.NewConfig()
	config.ClientID = "sarama" + options.Suffix
	config.Version = sarama.MaxVersion
	config.Consumer.MaxWaitTime = program.FetchMaxWait
	config.Consumer.Return.Errors = true
	if options.Committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer(options.Bootstrap, config)
	program.Check(err)

	records, errors := make(chan program.Record), make(chan error)
	for _, place := range options.Assign {
		partition, err := consumer.ConsumePartition(place.Topic, int32(place.Partition), sarama.OffsetOldest)
		program.Check(err)
		go forward(partition, records, errors)
	}
	// Its consumer waits for partition consumers that nobody reads any more: the process ends without it.
	program.Print("Sarama", "github.com/IBM/sarama", records, errors, func() {})
}

func forward(partition sarama.PartitionConsumer, records chan<- program.Record, errors chan<- error) {
	for {
		select {
		case message := <-partition.Messages():
			records <- convert(message)
		case err := <-partition.Errors():
			errors <- err
		}
	}
}

func convert(message *sarama.ConsumerMessage) program.Record {
	var headers []program.Header
	for _, header := range message.Headers {
		headers = append(headers, program.Header{Name: string(header.Key), Value: header.Value})
	}
	return program.Record{
		Topic: message.Topic, Partition: int(message.Partition), Offset: message.Offset,
		TimestampMs: message.Timestamp.UnixMilli(), Key: message.Key, Value: message.Value, Headers: headers,
	}
}
