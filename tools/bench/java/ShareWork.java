import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Works on records as a member of a share group (KIP-932):
 * ShareWork BOOTSTRAP TOPIC GROUP LOG WORK_MS ENTRIES. It ends when its stdin is closed.
 */
public final class ShareWork {
    private ShareWork() {
    }

    public static void main(String[] arguments) throws Exception {
        WorkLog log = new WorkLog(arguments[3], arguments[4], arguments[5]);
        readFromTheBeginning(arguments[0], arguments[2]);
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", arguments[2],
            "key.deserializer", ByteArrayDeserializer.class,
            "value.deserializer", ByteArrayDeserializer.class);
        AtomicBoolean stopped = new AtomicBoolean();
        Thread listening = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException error) {
                // It is closed, then.
            }
            stopped.set(true);
        });
        listening.setDaemon(true);
        listening.start();
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(arguments[1]));
            while (!stopped.get()) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                    log.handle(each.offset(), each.key());
                }
            }
        }
    }

    private static void readFromTheBeginning(String bootstrap, String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            ConfigEntry entry = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(Map.of(
                new ConfigResource(ConfigResource.Type.GROUP, group),
                List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
        }
    }
}
