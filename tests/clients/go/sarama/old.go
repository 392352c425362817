//go:build old

package main

import (
	"github.com/IBM/sarama"

	"fetchgate/tests/clients/program"
)

const name = "sarama-1.19"

func settle(*sarama.Config, program.Options) {}
