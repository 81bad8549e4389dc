import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.shardingsphere.elasticjob.api.JobConfiguration;
import org.apache.shardingsphere.elasticjob.infra.env.IpUtils;
import org.apache.shardingsphere.elasticjob.infra.pojo.JobConfigurationPOJO;
import org.apache.shardingsphere.elasticjob.infra.yaml.YamlEngine;
import org.apache.shardingsphere.elasticjob.lite.api.bootstrap.impl.ScheduleJobBootstrap;
import org.apache.shardingsphere.elasticjob.lite.internal.schedule.JobRegistry;
import org.apache.shardingsphere.elasticjob.lite.internal.schedule.JobScheduleController;
import org.apache.shardingsphere.elasticjob.reg.zookeeper.ZookeeperConfiguration;
import org.apache.shardingsphere.elasticjob.reg.zookeeper.ZookeeperRegistryCenter;
import org.quartz.Scheduler;

/**
 * A worker of ElasticJob with one job.
 *
 * Arguments: address of ZooKeeper, namespace, session time-out in milliseconds, own IPv4 address, the job's type, and a file
 * with the job's configuration as ElasticJob stores it. Says "ready INSTANCE" when the job is scheduled, and "stopped" when
 * it has shut down, which it does at the end of its input.
 */
public final class ElasticJobWorker {

    public static void main(String[] args) throws Exception {
        setAddress(args[3]);
        ZookeeperConfiguration where = new ZookeeperConfiguration(args[0], args[1]);
        where.setSessionTimeoutMilliseconds(Integer.parseInt(args[2]));
        ZookeeperRegistryCenter registry = new ZookeeperRegistryCenter(where);
        registry.init();
        String document = new String(Files.readAllBytes(Paths.get(args[5])), StandardCharsets.UTF_8);
        JobConfiguration config = YamlEngine.unmarshal(document, JobConfigurationPOJO.class).toJobConfiguration();
        ScheduleJobBootstrap job = new ScheduleJobBootstrap(registry, args[4], config);
        quartzOf(config.getJobName()).getListenerManager().addTriggerListener(new RecordingExecutor());
        job.schedule();
        say("ready " + args[3] + "@-@" + ProcessHandle.current().pid());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (lines.readLine() != null) {
            // there is nothing to be said to it
        }
        job.shutdown();
        registry.close();
        say("stopped");
        System.exit(0);
    }

    /** ElasticJob takes the address of the first network interface, which all workers of a test share. */
    private static void setAddress(String address) throws ReflectiveOperationException {
        Field field = IpUtils.class.getDeclaredField("cachedIpAddress");
        field.setAccessible(true);
        field.set(null, address);
    }

    private static Scheduler quartzOf(String jobName) throws ReflectiveOperationException {
        Field field = JobScheduleController.class.getDeclaredField("scheduler");
        field.setAccessible(true);
        return (Scheduler) field.get(JobRegistry.getInstance().getJobScheduleController(jobName));
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
