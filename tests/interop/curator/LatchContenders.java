import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;

/**
 * Contenders for a latch, each with a session of its own and with Curator's LeaderLatch, used as ElasticJob uses it.
 *
 * A line of input is "NAME LATCH HOLDER PATIENCE HOW": the contender stands in line at the path LATCH, for at most PATIENCE
 * milliseconds (0: as long as it takes). Owning the latch it makes the ephemeral node HOLDER, which must not be there, and
 * removes it again before it lets go; HOW "dies" closes the session instead. The answer is one line: "NAME held", "NAME left"
 * if the time was over, "NAME overlap" if HOLDER was there, "NAME failed" with an exception.
 */
public final class LatchContenders {

    private static final Map<String, CuratorFramework> CLIENTS = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService threads = Executors.newCachedThreadPool();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            threads.submit(() -> answer(args[0], words));
        }
        threads.shutdown();
        threads.awaitTermination(60, TimeUnit.SECONDS);
        CLIENTS.values().forEach(CuratorFramework::close);
        System.exit(0);
    }

    private static void answer(String address, String[] words) {
        String verdict;
        try {
            verdict = contend(address, words[0], words[1], words[2], Long.parseLong(words[3]), words[4].equals("dies"));
        } catch (Exception | AssertionError e) {
            verdict = "failed " + e;
        }
        synchronized (System.out) {
            System.out.println(words[0] + " " + verdict);
            System.out.flush();
        }
    }

    private static String contend(String address, String name, String path, String holder, long patience, boolean dies)
            throws Exception {
        CuratorFramework client = CLIENTS.computeIfAbsent(name, key -> connect(address));
        LeaderLatch latch = new LeaderLatch(client, path);
        latch.start();
        if (patience == 0) {
            latch.await();
        } else if (!latch.await(patience, TimeUnit.MILLISECONDS)) {
            latch.close();
            return "left";
        }
        try {
            client.create().withMode(CreateMode.EPHEMERAL).forPath(holder, name.getBytes(StandardCharsets.UTF_8));
        } catch (KeeperException.NodeExistsException e) {
            return "overlap";
        }
        client.getChildren().forPath(path);
        if (dies) {
            CLIENTS.remove(name).close();
        } else {
            client.delete().forPath(holder);
            latch.close();
        }
        return "held";
    }

    private static CuratorFramework connect(String address) {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(address)
                .sessionTimeoutMs(10_000)
                .connectionTimeoutMs(10_000)
                .retryPolicy(new ExponentialBackoffRetry(100, 5))
                .build();
        client.start();
        return client;
    }
}
