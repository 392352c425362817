import java.io.IOException;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.atomic.AtomicInteger;

/** A log of what was handled, as tools/work_log.py tells, that several threads may write. */
final class WorkLog {
    private static final int ENTRY = 32;

    private final MappedByteBuffer map;
    private final AtomicInteger next = new AtomicInteger();
    private final long workMs;

    /** Makes the log that a command line tells: its path, and then work and number of entries. */
    WorkLog(String path, String workMs, String entries) throws IOException {
        this.workMs = Long.parseLong(workMs);
        try (FileChannel file = FileChannel.open(
            Path.of(path), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            map = file.map(FileChannel.MapMode.READ_WRITE, 0, Long.parseLong(entries) * ENTRY);
        }
        map.order(ByteOrder.nativeOrder());
    }

    /** Works on a record, and logs it. */
    void handle(long offset, byte[] key) {
        long began = System.nanoTime();
        if (workMs > 0) {
            try {
                Thread.sleep(workMs);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new IllegalStateException(error);
            }
        }
        int at = next.getAndIncrement() * ENTRY;
        map.putLong(at, offset);
        map.putLong(at + 8, Long.parseLong(new String(key, StandardCharsets.US_ASCII)));
        map.putLong(at + 16, began);
        map.putLong(at + 24, System.nanoTime());
    }
}
