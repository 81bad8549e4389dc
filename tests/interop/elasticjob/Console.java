import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.shardingsphere.elasticjob.lite.lifecycle.api.JobAPIFactory;
import org.apache.shardingsphere.elasticjob.lite.lifecycle.api.JobOperateAPI;
import org.apache.shardingsphere.elasticjob.lite.lifecycle.api.JobStatisticsAPI;
import org.apache.shardingsphere.elasticjob.lite.lifecycle.api.ShardingStatisticsAPI;

/**
 * ElasticJob's API for operators, which elasticjob-ui is built on, spoken to in lines.
 *
 * Arguments: address of ZooKeeper, namespace. A line is "trigger JOB", or "disable", "enable", "shutdown" or "remove" with JOB
 * and SERVER (an IPv4 address); it is answered by "done". "job JOB" and "items JOB" are answered by what the UI shows, as JSON.
 */
public final class Console {

    public static void main(String[] args) throws Exception {
        JobOperateAPI operate = JobAPIFactory.createJobOperateAPI(args[0], args[1], null);
        JobStatisticsAPI jobs = JobAPIFactory.createJobStatisticsAPI(args[0], args[1], null);
        ShardingStatisticsAPI items = JobAPIFactory.createShardingStatisticsAPI(args[0], args[1], null);
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String job = words[1];
            switch (words[0]) {
                case "trigger":
                    operate.trigger(job);
                    break;
                case "disable":
                    operate.disable(job, words[2]);
                    break;
                case "enable":
                    operate.enable(job, words[2]);
                    break;
                case "shutdown":
                    operate.shutdown(job, words[2]);
                    break;
                case "remove":
                    operate.remove(job, words[2]);
                    break;
                case "job":
                    say(new Gson().toJson(jobs.getJobBriefInfo(job)));
                    continue;
                case "items":
                    say(new Gson().toJson(items.getShardingInfo(job)));
                    continue;
                default:
                    throw new IllegalArgumentException(line);
            }
            say("done");
        }
        System.exit(0);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
