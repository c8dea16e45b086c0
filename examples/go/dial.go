package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// dial opens a channel as the environment says: MUSTER_TLS_CA turns TLS on, MUSTER_TLS_CERT and MUSTER_TLS_KEY are for
// mutual TLS, MUSTER_TOKEN is sent with each call.
func dial(target string) *grpc.ClientConn {
	options := []grpc.DialOption{grpc.WithInsecure()} // newer: WithTransportCredentials(insecure.NewCredentials())
	if authority := os.Getenv("MUSTER_TLS_CA"); authority != "" {
		options[0] = grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig(authority)))
	}
	if secret := os.Getenv("MUSTER_TOKEN"); secret != "" {
		options = append(options, grpc.WithPerRPCCredentials(token(secret)))
	}
	connection, err := grpc.Dial(target, options...)
	check(err)
	return connection
}

func tlsConfig(authority string) *tls.Config {
	pem, err := os.ReadFile(authority)
	check(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		log.Fatalf("%s holds no certificate", authority)
	}
	if certificate := os.Getenv("MUSTER_TLS_CERT"); certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, os.Getenv("MUSTER_TLS_KEY"))
		check(err)
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

// token is sent with every call.
type token string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

// RequireTransportSecurity is false: on one host a deployment may ask for tokens without TLS.
func (t token) RequireTransportSecurity() bool { return false }
