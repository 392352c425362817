// Command moving produces or consumes while leaders move: tools/bench/moving.py says how it is called and
// what it prints.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"

	"fetchgate/tests/clients/program"
)

type options struct {
	client, role, topic, clientID string
	bootstrap                     []string
	partitions, rate, bytes       int
}

// received notes when records were produced (ns since 1970), and how long they took to come (ns).
type received struct {
	lock    sync.Mutex
	records [][2]int64
}

func (r *received) add(value []byte) {
	made := int64(binary.BigEndian.Uint64(value))
	r.lock.Lock()
	defer r.lock.Unlock()
	r.records = append(r.records, [2]int64{made, time.Now().UnixNano() - made})
	if len(r.records) == 1 {
		fmt.Println("ready")
	}
}

func main() {
	given := options{}
	var bootstrap string
	flag.StringVar(&given.client, "client", "", "Sarama or franz-go")
	flag.StringVar(&given.role, "role", "", "produce or consume")
	flag.StringVar(&bootstrap, "bootstrap", "", "HOST:PORT[,...]")
	flag.StringVar(&given.topic, "topic", "", "its name")
	flag.StringVar(&given.clientID, "client-id", "", "in every request")
	flag.IntVar(&given.partitions, "partitions", 0, "of the topic")
	flag.IntVar(&given.rate, "rate", 0, "records a second")
	flag.IntVar(&given.bytes, "bytes", 0, "of a record")
	flag.Parse()
	given.bootstrap = strings.Split(bootstrap, ",")

	stop := make(chan struct{})
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		close(stop)
	}()
	result := map[string]any{}
	switch given.client + " " + given.role {
	case "Sarama produce":
		produceSarama(given, stop)
	case "franz-go produce":
		produceFranz(given, stop)
	default:
		got := &received{}
		if given.client == "Sarama" {
			consumeSarama(given, got)
		} else {
			consumeFranz(given, got)
		}
		<-stop
		got.lock.Lock()
		result["records"] = got.records
	}
	program.Check(json.NewEncoder(os.Stdout).Encode(result))
}

// pace calls send at a constant rate until told to stop.
func pace(given options, stop <-chan struct{}, send func(value []byte, partition int32)) {
	fmt.Println("ready")
	began := time.Now()
	for made := 0; ; made++ {
		due := began.Add(time.Duration(made) * time.Second / time.Duration(given.rate))
		select {
		case <-stop:
			return
		case <-time.After(time.Until(due)):
		}
		value := make([]byte, given.bytes)
		binary.BigEndian.PutUint64(value, uint64(time.Now().UnixNano()))
		send(value, int32(made%given.partitions))
	}
}

func settings(given options) *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = given.clientID
	config.Version = sarama.MaxVersion
	return config
}

func produceSarama(given options, stop <-chan struct{}) {
	config := settings(given)
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1 // an idempotent producer of Sarama has no more
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Errors = false
	producer, err := sarama.NewAsyncProducer(given.bootstrap, config)
	program.Check(err)
	pace(given, stop, func(value []byte, partition int32) {
		message := &sarama.ProducerMessage{Topic: given.topic, Partition: partition}
		message.Value = sarama.ByteEncoder(value)
		producer.Input() <- message
	})
	program.Check(producer.Close())
}

func consumeSarama(given options, got *received) {
	consumer, err := sarama.NewConsumer(given.bootstrap, settings(given))
	program.Check(err)
	for number := range given.partitions {
		partition := newest(consumer, given.topic, int32(number))
		go func() {
			for message := range partition.Messages() {
				got.add(message.Value)
			}
		}()
	}
}

// newest consumes from the end of a partition. For a while after an election, the new leader does not tell it.
func newest(consumer sarama.Consumer, topic string, number int32) sarama.PartitionConsumer {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		partition, err := consumer.ConsumePartition(topic, number, sarama.OffsetNewest)
		if err == nil {
			return partition
		}
		if time.Since(began) > 30*time.Second {
			program.Check(err)
		}
	}
}

func produceFranz(given options, stop <-chan struct{}) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(given.bootstrap...),
		kgo.ClientID(given.clientID),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	program.Check(err)
	pace(given, stop, func(value []byte, partition int32) {
		record := &kgo.Record{Topic: given.topic, Partition: partition, Value: value}
		client.Produce(context.Background(), record, nil)
	})
	program.Check(client.Flush(context.Background()))
}

func consumeFranz(given options, got *received) {
	offsets := map[int32]kgo.Offset{}
	for number := range given.partitions {
		offsets[int32(number)] = kgo.NewOffset().AtEnd()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(given.bootstrap...),
		kgo.ClientID(given.clientID),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{given.topic: offsets}),
	)
	program.Check(err)
	go func() {
		for {
			client.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) { got.add(record.Value) })
		}
	}()
}
