package dev.muster.example;

import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.AbstractStub;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLException;

/** Channels as the environment says, closed together: MUSTER_TLS_CA turns TLS on, MUSTER_TLS_CERT and _KEY are for mutual TLS. */
final class Channels implements AutoCloseable {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private static final long TIMEOUT_S = 60;

    private final List<ManagedChannel> open = new ArrayList<>();

    ManagedChannel dial(String target) throws SSLException {
        NettyChannelBuilder builder = NettyChannelBuilder.forTarget(target);
        String authority = setting("MUSTER_TLS_CA", "");
        if (authority.isEmpty()) {
            builder.usePlaintext();
        } else {
            var tls = GrpcSslContexts.forClient().trustManager(new File(authority));
            String certificate = setting("MUSTER_TLS_CERT", "");
            if (!certificate.isEmpty()) {
                tls.keyManager(new File(certificate), new File(setting("MUSTER_TLS_KEY", "")));
            }
            builder.sslContext(tls.build());
        }
        ManagedChannel channel = builder.build();
        open.add(channel);
        return channel;
    }

    /** A stub whose calls carry the token of MUSTER_TOKEN and have a deadline from now on. */
    static <S extends AbstractStub<S>> S authorized(S stub) {
        String token = setting("MUSTER_TOKEN", "");
        Metadata headers = new Metadata();
        if (!token.isEmpty()) {
            headers.put(AUTHORIZATION, "Bearer " + token);
        }
        return stub.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers))
                .withDeadlineAfter(TIMEOUT_S, TimeUnit.SECONDS);
    }

    static String setting(String variable, String otherwise) {
        String value = System.getenv(variable);
        return value == null || value.isEmpty() ? otherwise : value;
    }

    @Override
    public void close() {
        open.forEach(ManagedChannel::shutdownNow);
    }
}
