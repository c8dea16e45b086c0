package dev.muster.example;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.protobuf.InvalidProtocolBufferException;
import dev.muster.example.rpc.BadRequest;
import dev.muster.example.rpc.ErrorInfo;
import dev.muster.example.rpc.RetryInfo;
import dev.muster.v1.ChatMessage;
import dev.muster.v1.ChatRequest;
import dev.muster.v1.ChatResponse;
import dev.muster.v1.CoordinatorServiceGrpc;
import dev.muster.v1.DetokenizeRequest;
import dev.muster.v1.EngineServiceGrpc;
import dev.muster.v1.FinishReason;
import dev.muster.v1.GenerateRequest;
import dev.muster.v1.GenerateResponse;
import dev.muster.v1.GenerationOptions;
import dev.muster.v1.GetDeploymentRequest;
import dev.muster.v1.InferenceServiceGrpc;
import dev.muster.v1.RankEntry;
import dev.muster.v1.RendezvousServiceGrpc;
import dev.muster.v1.SamplingParams;
import dev.muster.v1.StopConditions;
import dev.muster.v1.TokenizeRequest;
import dev.muster.v1.Usage;
import dev.muster.v1.WatchLoadRequest;
import dev.muster.v1.WatchLoadResponse;
import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.stream.Collectors;

/** A client of Muster's gRPC services: watches the load, chats, generates on one rank, reads an error, cancels. */
public final class Client {
    private static final int RANK = Integer.parseInt(Channels.setting("MUSTER_RANK", "0"));

    private Client() {}

    public static void main(String[] arguments) throws Exception {
        try (Channels channels = new Channels()) {
            var head = channels.dial(Channels.setting("MUSTER_HEAD", "127.0.0.1:29550"));
            var gateway = channels.dial(Channels.setting("MUSTER_GATEWAY", "127.0.0.1:8001"));
            var inference = Channels.authorized(InferenceServiceGrpc.newBlockingStub(gateway));
            watchLoad(Channels.authorized(CoordinatorServiceGrpc.newBlockingStub(head)));
            chat(inference);
            String target = targetOf(RANK, Channels.authorized(RendezvousServiceGrpc.newBlockingStub(head)));
            var engine = Channels.authorized(EngineServiceGrpc.newBlockingStub(channels.dial(target)));
            generate(inference, engine);
            provokeError(engine);
            cancel(engine);
        }
    }

    /** Snapshots of all ranks: at once, when something changed, and here at least every half second. */
    private static void watchLoad(CoordinatorServiceGrpc.CoordinatorServiceBlockingStub coordinator) throws Exception {
        var halfSecond = Duration.newBuilder().setNanos(500_000_000);
        var request = WatchLoadRequest.newBuilder().setHeartbeatInterval(halfSecond).build();
        Context.CancellableContext context = Context.current().withCancellation();
        context.run(() -> {
            Iterator<WatchLoadResponse> snapshots = coordinator.watchLoad(request);
            for (int i = 0; i < 3 && snapshots.hasNext(); i++) {
                WatchLoadResponse snapshot = snapshots.next();
                String ranks = snapshot.getLoadsList().stream()
                        .map(load -> String.format("rank %d waiting %d running %d", load.getRank(),
                                load.getStats().getWaiting(), load.getStats().getRunning()))
                        .collect(Collectors.joining(", "));
                System.out.printf("load    snapshot %d: %s%n", snapshot.getSequence(), ranks);
            }
        });
        context.cancel(null);
    }

    /** The text as it comes. Without the message with usage, the stream was cut off. */
    private static void chat(InferenceServiceGrpc.InferenceServiceBlockingStub inference) {
        var request = ChatRequest.newBuilder()
                .addMessages(ChatMessage.newBuilder().setRole("user").setContent("What is gravity?"))
                .setOptions(GenerationOptions.newBuilder()
                        .setSampling(SamplingParams.newBuilder().setTemperature(0))
                        .setConditions(StopConditions.newBuilder().setMaxTokens(24)))
                .build();
        FinishReason reason = FinishReason.FINISH_REASON_UNSPECIFIED;
        ChatResponse last = ChatResponse.getDefaultInstance();
        System.out.print("chat    ");
        for (Iterator<ChatResponse> responses = inference.chat(request); responses.hasNext(); ) {
            last = responses.next();
            System.out.print(last.getDelta().getText().replace('\n', ' '));
            if (last.getDelta().getFinishReason() != FinishReason.FINISH_REASON_UNSPECIFIED) {
                reason = last.getDelta().getFinishReason();
            }
        }
        System.out.println();
        printEnd("chat", reason, last.hasUsage() ? last.getUsage() : null);
    }

    /** Where a rank serves. Unix sockets are for processes of its own host. */
    private static String targetOf(int rank, RendezvousServiceGrpc.RendezvousServiceBlockingStub rendezvous) {
        var roster = rendezvous.getDeployment(GetDeploymentRequest.getDefaultInstance()).getRoster();
        return roster.getRanksList().stream()
                .filter(entry -> entry.getRank() == rank)
                .map(RankEntry::getTargetsList)
                .flatMap(targets -> targets.stream())
                .filter(target -> !target.startsWith("unix:"))
                .findFirst()
                .orElseThrow(() -> new IllegalStateException("rank " + rank + " does not serve"));
    }

    /** Token ids in, token ids out, past the gateway's balancing: on this rank and no other. */
    private static void generate(
            InferenceServiceGrpc.InferenceServiceBlockingStub inference,
            EngineServiceGrpc.EngineServiceBlockingStub engine) {
        var prompt = inference.tokenize(TokenizeRequest.newBuilder().setText("Once upon a time").build());
        var request = GenerateRequest.newBuilder()
                .addAllPromptTokenIds(prompt.getTokenIdsList())
                .setSampling(SamplingParams.newBuilder().setTemperature(0))
                .setStop(StopConditions.newBuilder().setMaxTokens(8).setIgnoreEos(true))
                .build();
        List<Integer> tokenIds = new ArrayList<>();
        GenerateResponse last = GenerateResponse.getDefaultInstance();
        for (Iterator<GenerateResponse> responses = engine.generate(request); responses.hasNext(); ) {
            last = responses.next();
            tokenIds.addAll(last.getTokenIdsList()); // deltas, never cumulative
        }
        var text = inference.detokenize(DetokenizeRequest.newBuilder().addAllTokenIds(tokenIds).build()).getText();
        String ids = tokenIds.stream().map(Integer::toUnsignedString).collect(Collectors.joining(" "));
        System.out.printf("tokens  rank %d: %s = \"%s\"%n", RANK, ids, text);
        printEnd("tokens", last.getFinishReason(), last.hasUsage() ? last.getUsage() : null);
    }

    /** What programs go by are status, reason and fields; messages are for people. */
    private static void provokeError(EngineServiceGrpc.EngineServiceBlockingStub engine)
            throws InvalidProtocolBufferException {
        var request = GenerateRequest.newBuilder()
                .addPromptTokenIds(1)
                .setSampling(SamplingParams.newBuilder().setTemperature(9))
                .build();
        try {
            engine.generate(request).forEachRemaining(response -> {});
        } catch (StatusRuntimeException error) {
            System.out.printf("error   %s: %s%n", error.getStatus().getCode(), error.getStatus().getDescription());
            for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    ErrorInfo info = detail.unpack(ErrorInfo.class);
                    System.out.printf("error   reason %s, domain %s%n", info.getReason(), info.getDomain());
                } else if (detail.is(BadRequest.class)) {
                    detail.unpack(BadRequest.class).getFieldViolationsList().forEach(violation -> System.out.printf(
                            "error   field %s: %s%n", violation.getField(), violation.getDescription()));
                } else if (detail.is(RetryInfo.class)) {
                    long seconds = detail.unpack(RetryInfo.class).getRetryDelay().getSeconds();
                    System.out.printf("error   try again in %d s%n", seconds);
                }
            }
        }
    }

    /** Cancelling the call aborts the request in the engine before its next step. */
    private static void cancel(EngineServiceGrpc.EngineServiceBlockingStub engine) {
        var request = GenerateRequest.newBuilder()
                .addPromptTokenIds(1)
                .setStop(StopConditions.newBuilder().setMaxTokens(500).setIgnoreEos(true))
                .build();
        int[] numTokens = {0};
        Context.CancellableContext context = Context.current().withCancellation();
        try {
            context.run(() -> engine.generate(request).forEachRemaining(response -> {
                numTokens[0] += response.getTokenIdsCount();
                if (numTokens[0] >= 3) {
                    context.cancel(null);
                }
            }));
        } catch (StatusRuntimeException error) {
            System.out.printf("cancel  %s after %d tokens%n", error.getStatus().getCode(), numTokens[0]);
        }
    }

    private static void printEnd(String step, FinishReason reason, Usage usage) {
        if (usage == null) {
            throw new IllegalStateException("the answer was cut off");
        }
        System.out.printf("%-8s%s, %d prompt tokens, %d generated%n",
                step, reason, usage.getPromptTokens(), usage.getCompletionTokens());
    }
}
