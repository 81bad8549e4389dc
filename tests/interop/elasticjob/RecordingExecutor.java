import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import org.apache.shardingsphere.elasticjob.api.ElasticJob;
import org.apache.shardingsphere.elasticjob.api.JobConfiguration;
import org.apache.shardingsphere.elasticjob.api.ShardingContext;
import org.apache.shardingsphere.elasticjob.executor.JobFacade;
import org.apache.shardingsphere.elasticjob.executor.item.impl.TypedJobItemExecutor;
import org.quartz.JobExecutionContext;
import org.quartz.Trigger;
import org.quartz.listeners.TriggerListenerSupport;

/**
 * The Java twin of the tests' RecordingJob: writes the same lines to the same file, and obeys `seconds` and `hold` of the job
 * parameter.
 *
 * It is a job type, not a job class, so that its text in the registry can be the Python class's: a job has one text for all
 * its workers. ElasticJob does not tell a body which fire it is run for, so Quartz is listened to: a job has one fire at a time.
 */
public final class RecordingExecutor extends TriggerListenerSupport implements TypedJobItemExecutor {

    private static final Gson JSON = new GsonBuilder().serializeNulls().create();
    private static final Path RECORD = Paths.get(System.getenv("EJPY_TEST_RECORD"));

    private static volatile Instant fire;

    @Override
    public String getName() {
        return "fires";
    }

    @Override
    public void triggerFired(Trigger trigger, JobExecutionContext context) {
        fire = context.getScheduledFireTime().toInstant();
    }

    @Override
    public String getType() {
        return "tests.support.jobs:RecordingJob";
    }

    @Override
    public void process(ElasticJob job, JobConfiguration config, JobFacade facade, ShardingContext context) {
        JsonObject behaviour = JSON.fromJson(context.getJobParameter(), JsonObject.class);
        Instant begin = Instant.now();
        JsonObject line = new JsonObject();
        line.addProperty("job", context.getJobName());
        line.addProperty("item", context.getShardingItem());
        line.addProperty("total", context.getShardingTotalCount());
        line.addProperty("parameter", context.getShardingParameter());
        line.addProperty("scheduled_time", fire.toString().replace("Z", "+00:00"));
        line.addProperty("attempt", 1);
        line.addProperty("reason", "scheduled");
        line.addProperty("token", begin.toEpochMilli());
        line.addProperty("pid", ProcessHandle.current().pid());
        append("start", begin, line);
        behave(behaviour);
        line.addProperty("how", "returned");
        append("end", Instant.now(), line);
    }

    private static void behave(JsonObject behaviour) {
        double seconds = behaviour.has("seconds") ? behaviour.get("seconds").getAsDouble() : 0;
        String hold = behaviour.has("hold") ? behaviour.get("hold").getAsString() : null;
        long end = System.nanoTime() + (long) (seconds * 1e9);
        try {
            while (System.nanoTime() < end || hold != null && Files.exists(Paths.get(hold))) {
                Thread.sleep(10);
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException("told to stop", e);
        }
    }

    private static void append(String event, Instant at, JsonObject line) {
        line.addProperty("event", event);
        line.addProperty("at", at.toEpochMilli() / 1000.0);
        byte[] bytes = (JSON.toJson(line) + "\n").getBytes(StandardCharsets.UTF_8);
        try {
            Files.write(RECORD, bytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
