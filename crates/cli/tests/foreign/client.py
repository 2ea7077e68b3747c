"""Calls the agents' port with code that grpcio-tools generates from the protocol file.

Arguments: the protocol file, the address. Each line of standard input is a command in JSON; each has one line of JSON as its
response. Bytes are base64.

  {"call": "Hello", "request": {...}}                 makes a call: {"code": "OK", "response": {...}}, or the error
  {"call": "Poll", "request": {...}, "as": "parked"}  starts a call: {}
  {"collect": "parked"}                               waits for its response
  {"derive": "web-01", "cluster_id": "..."}           the id of a node
  {"health": "SERVICE"}                               the status of a service, or the error
  {"watch": "SERVICE"}, {"next": true}                opens the stream of a status; reads from it: null at its end
  {"reflect": true}                                   all services, and the methods of the protocol
"""

import base64
import json
import os
import sys
import tempfile
import uuid

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_tools import protoc

DEADLINE_S = 90


def generate(proto, directory):
    folder, name = os.path.split(proto)
    status = protoc.main(["", "-I" + folder, "--python_out=" + directory, "--grpc_python_out=" + directory, name])
    if status != 0:
        sys.exit("cannot compile " + proto)
    sys.path.insert(0, directory)
    import agent_pb2
    import agent_pb2_grpc

    return agent_pb2, agent_pb2_grpc


def failure(error):
    metadata = {key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)}
    return {"code": error.code().name, "details": error.details(), "metadata": metadata}


def outcome(call):
    """Returns the response of a call, or its error."""
    try:
        response = call()
    except grpc.RpcError as error:
        return failure(error)
    return {"code": "OK", "response": json_format.MessageToDict(response, preserving_proto_field_name=True)}


def status_name(response):
    return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)


def listed(channel, version):
    """Lists the services with a version of the reflection service; all versions have the same messages."""
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    [response] = method(requests, timeout=DEADLINE_S)
    return sorted(service.name for service in response.list_services_response.service)


def reflected(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    service = DescriptorPool(database).FindServiceByName("downbeat.agent.v1.Agent")
    methods = {method.name: [field.name for field in method.input_type.fields] for method in service.methods}
    services = {version: listed(channel, version) for version in ("v1", "v1alpha")}
    return {"services": services, "methods": methods}


def serve(proto, address, directory):
    messages, services = generate(proto, directory)
    channel = grpc.insecure_channel(address)
    agent, health = services.AgentStub(channel), health_pb2_grpc.HealthStub(channel)
    started, stream = {}, iter(())
    for line in sys.stdin:
        command = json.loads(line)
        if "call" in command:
            name = command["call"]
            method = getattr(agent, name)
            request = json_format.ParseDict(command["request"], getattr(messages, name + "Request")())
            if "as" in command:
                started[command["as"]] = method.future(request, timeout=DEADLINE_S)
                answer = {}
            else:
                answer = outcome(lambda: method(request, timeout=DEADLINE_S))
        elif "collect" in command:
            answer = outcome(started.pop(command["collect"]).result)
        elif "derive" in command:
            cluster = uuid.UUID(bytes=base64.b64decode(command["cluster_id"]))
            node = uuid.uuid5(uuid.NAMESPACE_DNS, f"{cluster}:{command['derive']}")
            answer = base64.b64encode(node.bytes).decode()
        elif "health" in command:
            request = health_pb2.HealthCheckRequest(service=command["health"])
            try:
                answer = status_name(health.Check(request, timeout=DEADLINE_S))
            except grpc.RpcError as error:
                answer = failure(error)
        elif "watch" in command:
            request = health_pb2.HealthCheckRequest(service=command["watch"])
            stream, answer = health.Watch(request, timeout=DEADLINE_S), {}
        elif "next" in command:
            try:
                response = next(stream, None)
                answer = response and status_name(response)
            except grpc.RpcError as error:
                answer = failure(error)
        else:
            answer = reflected(channel)
        print(json.dumps(answer), flush=True)


with tempfile.TemporaryDirectory() as scratch:
    serve(sys.argv[1], sys.argv[2], scratch)
