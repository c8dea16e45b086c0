# frozen_string_literal: true

# A client of Muster's gRPC services: watches the load, chats, generates on one rank, reads an error, cancels.

$LOAD_PATH.unshift(File.join(__dir__, 'build'))

require 'google/protobuf/well_known_types' # Any's unpack
require 'google/rpc/error_details_pb'
require 'grpc'
require 'muster/v1/coordinator_services_pb'
require 'muster/v1/engine_services_pb'
require 'muster/v1/inference_services_pb'
require 'muster/v1/rendezvous_services_pb'

include Muster::V1

HEAD = ENV.fetch('MUSTER_HEAD', '127.0.0.1:29550')
GATEWAY = ENV.fetch('MUSTER_GATEWAY', '127.0.0.1:8001')
RANK = Integer(ENV.fetch('MUSTER_RANK', '0'))
METADATA = ENV['MUSTER_TOKEN'] ? { 'authorization' => "Bearer #{ENV['MUSTER_TOKEN']}" } : {}

def file_of(variable)
  path = ENV.fetch(variable, '')
  path.empty? ? nil : File.binread(path)
end

# TLS as the environment says: MUSTER_TLS_CA, and MUSTER_TLS_CERT with MUSTER_TLS_KEY for mutual TLS.
def credentials
  authority = file_of('MUSTER_TLS_CA')
  return :this_channel_is_insecure unless authority

  GRPC::Core::ChannelCredentials.new(authority, file_of('MUSTER_TLS_KEY'), file_of('MUSTER_TLS_CERT'))
end

def dial(service, target)
  service::Stub.new(target, credentials)
end

# What every call is given: how long it may take, and the token.
def options
  { deadline: Time.now + 60, metadata: METADATA }
end

def ended(step, reason, usage)
  abort 'the answer was cut off' unless usage
  puts "#{step}#{reason}, #{usage.prompt_tokens} prompt tokens, #{usage.completion_tokens} generated"
end

# Snapshots of all ranks: at once, when something changed, and here at least every half second.
def watch_load(coordinator)
  half_second = Google::Protobuf::Duration.new(nanos: 500_000_000)
  request = WatchLoadRequest.new(heartbeat_interval: half_second)
  call = coordinator.watch_load(request, return_op: true, **options)
  call.execute.first(3).each do |snapshot|
    ranks = snapshot.loads.map { |load| "rank #{load.rank} waiting #{load.stats.waiting} running #{load.stats.running}" }
    puts "load    snapshot #{snapshot.sequence}: #{ranks.join(', ')}"
  end
  call.cancel
end

# The text as it comes. Without the message with usage, the stream was cut off.
def chat(inference)
  request = ChatRequest.new(
    messages: [ChatMessage.new(role: 'user', content: 'What is gravity?')],
    options: GenerationOptions.new(
      sampling: SamplingParams.new(temperature: 0), conditions: StopConditions.new(max_tokens: 24)
    )
  )
  reason = usage = nil
  print 'chat    '
  inference.chat(request, **options).each do |response|
    print response.delta.text.tr("\n", ' ') if response.delta
    reason = response.delta.finish_reason if response.delta && response.delta.finish_reason != :FINISH_REASON_UNSPECIFIED
    usage = response.usage || usage
  end
  puts
  ended('chat    ', reason, usage)
end

# Where a rank serves. Unix sockets are for processes of its own host.
def target_of(rank, rendezvous)
  entry = rendezvous.get_deployment(GetDeploymentRequest.new, **options).roster.ranks[rank]
  entry&.targets&.find { |target| !target.start_with?('unix:') } || abort("rank #{rank} does not serve")
end

# Token ids in, token ids out, past the gateway's balancing: on this rank and no other.
def generate(inference, engine)
  prompt = inference.tokenize(TokenizeRequest.new(text: 'Once upon a time'), **options)
  request = GenerateRequest.new(
    prompt_token_ids: prompt.token_ids.to_a,
    sampling: SamplingParams.new(temperature: 0),
    stop: StopConditions.new(max_tokens: 8, ignore_eos: true)
  )
  responses = engine.generate(request, **options).to_a
  token_ids = responses.flat_map { |response| response.token_ids.to_a } # deltas, never cumulative
  text = inference.detokenize(DetokenizeRequest.new(token_ids: token_ids), **options).text
  puts "tokens  rank #{RANK}: #{token_ids.join(' ')} = #{text.inspect}"
  ended('tokens  ', responses.last.finish_reason, responses.last.usage)
end

def name_of(error)
  GRPC::Core::StatusCodes.constants.find { |name| GRPC::Core::StatusCodes.const_get(name) == error.code }
end

# What programs go by are status, reason and fields; messages are for people.
def provoke_error(engine)
  engine.generate(GenerateRequest.new(prompt_token_ids: [1], sampling: SamplingParams.new(temperature: 9)), **options).to_a
rescue GRPC::BadStatus => e
  puts "error   #{name_of(e)}: #{e.details}"
  e.to_rpc_status.details.each do |detail|
    if (info = detail.unpack(Google::Rpc::ErrorInfo))
      puts "error   reason #{info.reason}, domain #{info.domain}"
    elsif (fault = detail.unpack(Google::Rpc::BadRequest))
      fault.field_violations.each { |violation| puts "error   field #{violation.field}: #{violation.description}" }
    elsif (retry_info = detail.unpack(Google::Rpc::RetryInfo))
      puts "error   try again in #{retry_info.retry_delay.seconds} s"
    end
  end
end

# Cancelling the call aborts the request in the engine before its next step.
def cancel(engine)
  request = GenerateRequest.new(prompt_token_ids: [1], stop: StopConditions.new(max_tokens: 500, ignore_eos: true))
  call = engine.generate(request, return_op: true, **options)
  num_tokens = 0
  call.execute.each do |response|
    num_tokens += response.token_ids.size
    call.cancel if num_tokens >= 3
  end
rescue GRPC::BadStatus => e
  puts "cancel  #{name_of(e)} after #{num_tokens} tokens"
end

$stdout.sync = true
inference = dial(InferenceService, GATEWAY)
watch_load(dial(CoordinatorService, HEAD))
chat(inference)
engine = dial(EngineService, target_of(RANK, dial(RendezvousService, HEAD)))
generate(inference, engine)
provoke_error(engine)
cancel(engine)
