// Client of Muster's gRPC services: watches the load, chats, generates on one rank, reads an error, cancels.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	muster "muster/v1"
)

const timeout = 60 * time.Second

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	head, gateway := dial(setting("MUSTER_HEAD", "127.0.0.1:29550")), dial(setting("MUSTER_GATEWAY", "127.0.0.1:8001"))
	defer head.Close()
	defer gateway.Close()
	rank, err := strconv.Atoi(setting("MUSTER_RANK", "0"))
	check(err)

	inference := muster.NewInferenceServiceClient(gateway)
	watchLoad(ctx, muster.NewCoordinatorServiceClient(head))
	chat(ctx, inference)
	connection := dial(targetOf(ctx, rank, muster.NewRendezvousServiceClient(head)))
	defer connection.Close()
	engine := muster.NewEngineServiceClient(connection)
	generate(ctx, rank, inference, engine)
	provokeError(ctx, engine)
	cancelOne(ctx, engine)
}

// watchLoad prints snapshots of all ranks: at once, when something changed, and here at least every half second.
func watchLoad(ctx context.Context, coordinator muster.CoordinatorServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := &muster.WatchLoadRequest{HeartbeatInterval: durationpb.New(500 * time.Millisecond)}
	stream, err := coordinator.WatchLoad(ctx, request)
	check(err)
	for i := 0; i < 3; i++ {
		snapshot, err := stream.Recv()
		check(err)
		ranks := []string{}
		for _, load := range snapshot.Loads {
			ranks = append(ranks, fmt.Sprintf("rank %d waiting %d running %d", load.Rank, load.Stats.Waiting, load.Stats.Running))
		}
		fmt.Printf("load    snapshot %d: %s\n", snapshot.Sequence, strings.Join(ranks, ", "))
	}
}

// chat prints the text as it comes. Without the message with usage, the stream was cut off.
func chat(ctx context.Context, inference muster.InferenceServiceClient) {
	stream, err := inference.Chat(ctx, &muster.ChatRequest{
		Messages: []*muster.ChatMessage{{Role: "user", Content: "What is gravity?"}},
		Options: &muster.GenerationOptions{
			Sampling:   &muster.SamplingParams{Temperature: proto.Float32(0)},
			Conditions: &muster.StopConditions{MaxTokens: proto.Uint32(24)},
		},
	})
	check(err)
	var reason muster.FinishReason
	var usage *muster.Usage
	fmt.Print("chat    ")
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			break
		}
		check(err)
		fmt.Print(strings.ReplaceAll(response.GetDelta().GetText(), "\n", " "))
		if ended := response.GetDelta().GetFinishReason(); ended != muster.FinishReason_FINISH_REASON_UNSPECIFIED {
			reason = ended
		}
		if response.Usage != nil {
			usage = response.Usage
		}
	}
	if usage == nil {
		log.Fatal("the answer was cut off")
	}
	fmt.Printf("\nchat    %s, %d prompt tokens, %d generated\n", reason, usage.PromptTokens, usage.CompletionTokens)
}

// targetOf says where a rank serves. Unix sockets are for processes of its own host.
func targetOf(ctx context.Context, rank int, rendezvous muster.RendezvousServiceClient) string {
	deployment, err := rendezvous.GetDeployment(ctx, &muster.GetDeploymentRequest{})
	check(err)
	if ranks := deployment.Roster.Ranks; rank < len(ranks) {
		for _, target := range ranks[rank].Targets {
			if !strings.HasPrefix(target, "unix:") {
				return target
			}
		}
	}
	log.Fatalf("rank %d does not serve", rank)
	return ""
}

// generate sends token ids and gets token ids, past the gateway's balancing: on this rank and no other.
func generate(ctx context.Context, rank int, inference muster.InferenceServiceClient, engine muster.EngineServiceClient) {
	prompt, err := inference.Tokenize(ctx, &muster.TokenizeRequest{Text: "Once upon a time"})
	check(err)
	stream, err := engine.Generate(ctx, &muster.GenerateRequest{
		PromptTokenIds: prompt.TokenIds,
		Sampling:       &muster.SamplingParams{Temperature: proto.Float32(0)},
		Stop:           &muster.StopConditions{MaxTokens: proto.Uint32(8), IgnoreEos: true},
	})
	check(err)
	var tokenIDs []uint32
	var last *muster.GenerateResponse
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			break
		}
		check(err)
		tokenIDs = append(tokenIDs, response.TokenIds...) // deltas, never cumulative
		last = response
	}
	if last.GetUsage() == nil {
		log.Fatal("the answer was cut off")
	}
	text, err := inference.Detokenize(ctx, &muster.DetokenizeRequest{TokenIds: tokenIDs})
	check(err)
	fmt.Printf("tokens  rank %d: %s = %q\n", rank, strings.Trim(fmt.Sprint(tokenIDs), "[]"), text.Text)
	usage := last.Usage
	fmt.Printf("tokens  %s, %d prompt tokens, %d generated\n", last.FinishReason, usage.PromptTokens, usage.CompletionTokens)
}

// provokeError reads what programs go by: status, reason and fields; messages are for people.
func provokeError(ctx context.Context, engine muster.EngineServiceClient) {
	stream, err := engine.Generate(ctx, &muster.GenerateRequest{
		PromptTokenIds: []uint32{1},
		Sampling:       &muster.SamplingParams{Temperature: proto.Float32(9)},
	})
	check(err)
	_, err = stream.Recv()
	failure := status.Convert(err)
	fmt.Printf("error   %s: %s\n", nameOf(failure.Code()), failure.Message())
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Printf("error   reason %s, domain %s\n", detail.Reason, detail.Domain)
		case *errdetails.BadRequest:
			for _, violation := range detail.FieldViolations {
				fmt.Printf("error   field %s: %s\n", violation.Field, violation.Description)
			}
		case *errdetails.RetryInfo:
			fmt.Printf("error   try again in %d s\n", detail.RetryDelay.GetSeconds())
		}
	}
}

// cancelOne cancels a call, which aborts its request in the engine before its next step.
func cancelOne(ctx context.Context, engine muster.EngineServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := engine.Generate(ctx, &muster.GenerateRequest{
		PromptTokenIds: []uint32{1},
		Stop:           &muster.StopConditions{MaxTokens: proto.Uint32(500), IgnoreEos: true},
	})
	check(err)
	numTokens := 0
	for {
		response, err := stream.Recv()
		if err != nil {
			fmt.Printf("cancel  %s after %d tokens\n", nameOf(status.Code(err)), numTokens)
			return
		}
		numTokens += len(response.TokenIds)
		if numTokens >= 3 {
			cancel()
		}
	}
}

// nameOf gives a status code its name in the protocol, as all other languages do.
func nameOf(code codes.Code) string {
	switch code {
	case codes.OK:
		return "OK"
	case codes.Canceled:
		return "CANCELLED"
	}
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}

func setting(variable, otherwise string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return otherwise
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
