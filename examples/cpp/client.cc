// A client of Muster's gRPC services: watches the load, chats, generates on one rank, reads an error, cancels.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "muster/v1/coordinator.grpc.pb.h"
#include "muster/v1/engine.grpc.pb.h"
#include "muster/v1/inference.grpc.pb.h"
#include "muster/v1/rendezvous.grpc.pb.h"

namespace {

namespace wire = muster::v1;

std::string setting(const char* variable, const std::string& otherwise = "") {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::string file_of(const char* variable) {
  const std::string path = setting(variable);
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string(variable) + ": cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// TLS as the environment says: MUSTER_TLS_CA, and MUSTER_TLS_CERT with MUSTER_TLS_KEY for mutual TLS.
std::shared_ptr<grpc::Channel> dial(const std::string& target) {
  const std::string authority = file_of("MUSTER_TLS_CA");
  if (authority.empty()) return grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  grpc::SslCredentialsOptions options{authority, file_of("MUSTER_TLS_KEY"), file_of("MUSTER_TLS_CERT")};
  return grpc::CreateChannel(target, grpc::SslCredentials(options));
}

// One call's context: its deadline, and the token of MUSTER_TOKEN.
struct Call : grpc::ClientContext {
  Call() {
    set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const std::string token = setting("MUSTER_TOKEN");
    if (!token.empty()) AddMetadata("authorization", "Bearer " + token);
  }
};

void check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

// Snapshots of all ranks: at once, when something changed, and here at least every half second.
void watch_load(wire::CoordinatorService::Stub& coordinator) {
  Call call;
  wire::WatchLoadRequest request;
  request.mutable_heartbeat_interval()->set_nanos(500'000'000);
  auto stream = coordinator.WatchLoad(&call, request);
  wire::WatchLoadResponse snapshot;
  for (int i = 0; i < 3 && stream->Read(&snapshot); ++i) {
    std::cout << "load    snapshot " << snapshot.sequence() << ":";
    const char* separator = " ";
    for (const auto& load : snapshot.loads()) {
      std::cout << separator << "rank " << load.rank() << " waiting " << load.stats().waiting() << " running "
                << load.stats().running();
      separator = ", ";
    }
    std::cout << std::endl;
  }
  call.TryCancel();
  while (stream->Read(&snapshot)) {
  }
  stream->Finish();
}

void print_end(const char* step, wire::FinishReason reason, const wire::Usage& usage) {
  std::cout << step << wire::FinishReason_Name(reason) << ", " << usage.prompt_tokens() << " prompt tokens, "
            << usage.completion_tokens() << " generated" << std::endl;
}

// The text as it comes. Without the message with usage, the stream was cut off.
void chat(wire::InferenceService::Stub& inference) {
  Call call;
  wire::ChatRequest request;
  auto* message = request.add_messages();
  message->set_role("user");
  message->set_content("What is gravity?");
  request.mutable_options()->mutable_sampling()->set_temperature(0);
  request.mutable_options()->mutable_conditions()->set_max_tokens(24);
  auto stream = inference.Chat(&call, request);
  wire::ChatResponse response;
  wire::FinishReason reason{};
  std::cout << "chat    ";
  while (stream->Read(&response)) {
    std::string text = response.delta().text();
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::cout << text << std::flush;
    if (response.delta().finish_reason()) reason = response.delta().finish_reason();
  }
  check(stream->Finish());
  if (!response.has_usage()) throw std::runtime_error("the answer was cut off");
  std::cout << "\n";
  print_end("chat    ", reason, response.usage());
}

// Where a rank serves. Unix sockets are for processes of its own host.
std::string target_of(int rank, wire::RendezvousService::Stub& rendezvous) {
  Call call;
  wire::GetDeploymentResponse deployment;
  check(rendezvous.GetDeployment(&call, {}, &deployment));
  if (rank < deployment.roster().ranks_size()) {
    for (const std::string& target : deployment.roster().ranks(rank).targets()) {
      if (target.rfind("unix:", 0) != 0) return target;
    }
  }
  throw std::runtime_error("rank " + std::to_string(rank) + " does not serve");
}

// Token ids in, token ids out, past the gateway's balancing: on this rank and no other.
void generate(int rank, wire::InferenceService::Stub& inference, wire::EngineService::Stub& engine) {
  Call tokenize;
  wire::TokenizeRequest text;
  text.set_text("Once upon a time");
  wire::TokenizeResponse prompt;
  check(inference.Tokenize(&tokenize, text, &prompt));

  Call call;
  wire::GenerateRequest request;
  *request.mutable_prompt_token_ids() = prompt.token_ids();
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(8);
  request.mutable_stop()->set_ignore_eos(true);
  auto stream = engine.Generate(&call, request);
  wire::GenerateResponse response;
  wire::DetokenizeRequest generated;
  while (stream->Read(&response)) {
    generated.mutable_token_ids()->MergeFrom(response.token_ids());  // deltas, never cumulative
  }
  check(stream->Finish());
  if (!response.has_usage()) throw std::runtime_error("the answer was cut off");

  Call detokenize;
  wire::DetokenizeResponse answer;
  check(inference.Detokenize(&detokenize, generated, &answer));
  std::cout << "tokens  rank " << rank << ":";
  for (const auto id : generated.token_ids()) std::cout << " " << id;
  std::cout << " = \"" << answer.text() << "\"\n";
  print_end("tokens  ", response.finish_reason(), response.usage());
}

const char* name_of(grpc::StatusCode code) {
  static const char* const names[] = {
      "OK",          "CANCELLED",          "UNKNOWN",           "INVALID_ARGUMENT",    "DEADLINE_EXCEEDED",
      "NOT_FOUND",   "ALREADY_EXISTS",     "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",  "FAILED_PRECONDITION",
      "ABORTED",     "OUT_OF_RANGE",       "UNIMPLEMENTED",     "INTERNAL",            "UNAVAILABLE",
      "DATA_LOSS",   "UNAUTHENTICATED"};
  return names[code];
}

// What programs go by are status, reason and fields; messages are for people.
void provoke_error(wire::EngineService::Stub& engine) {
  Call call;
  wire::GenerateRequest request;
  request.add_prompt_token_ids(1);
  request.mutable_sampling()->set_temperature(9);
  auto stream = engine.Generate(&call, request);
  wire::GenerateResponse response;
  while (stream->Read(&response)) {
  }
  const grpc::Status error = stream->Finish();
  std::cout << "error   " << name_of(error.error_code()) << ": " << error.error_message() << "\n";
  google::rpc::Status status;
  status.ParseFromString(error.error_details());
  for (const auto& detail : status.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest fault;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) {
      std::cout << "error   reason " << info.reason() << ", domain " << info.domain() << "\n";
    } else if (detail.UnpackTo(&fault)) {
      for (const auto& violation : fault.field_violations()) {
        std::cout << "error   field " << violation.field() << ": " << violation.description() << "\n";
      }
    } else if (detail.UnpackTo(&retry)) {
      std::cout << "error   try again in " << retry.retry_delay().seconds() << " s\n";
    }
  }
}

// Cancelling the call aborts the request in the engine before its next step.
void cancel(wire::EngineService::Stub& engine) {
  Call call;
  wire::GenerateRequest request;
  request.add_prompt_token_ids(1);
  request.mutable_stop()->set_max_tokens(500);
  request.mutable_stop()->set_ignore_eos(true);
  auto stream = engine.Generate(&call, request);
  wire::GenerateResponse response;
  int num_tokens = 0;
  while (stream->Read(&response)) {
    num_tokens += response.token_ids_size();
    if (num_tokens >= 3) call.TryCancel();
  }
  std::cout << "cancel  " << name_of(stream->Finish().error_code()) << " after " << num_tokens << " tokens" << std::endl;
}

void run() {
  auto head = dial(setting("MUSTER_HEAD", "127.0.0.1:29550"));
  const int rank = std::stoi(setting("MUSTER_RANK", "0"));
  wire::InferenceService::Stub inference(dial(setting("MUSTER_GATEWAY", "127.0.0.1:8001")));
  wire::CoordinatorService::Stub coordinator(head);
  wire::RendezvousService::Stub rendezvous(head);
  watch_load(coordinator);
  chat(inference);
  wire::EngineService::Stub engine(dial(target_of(rank, rendezvous)));
  generate(rank, inference, engine);
  provoke_error(engine);
  cancel(engine);
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
