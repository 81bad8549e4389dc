import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.text.ParseException;
import java.util.Date;
import java.util.TimeZone;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.quartz.CronExpression;

/**
 * Asks Quartz when cron expressions fire.
 *
 * A line of input is "zone TAB start TAB count TAB expression", with start in seconds since the epoch. The answer is one
 * line: the next `count` fire times, in seconds, parted by blanks, with END if there are no more; or REFUSED (by the
 * parser); or FAILED (an exception while computing); or HANGS (no answer within the seconds given as argument).
 */
public final class FireTimes {

    public static void main(String[] args) throws Exception {
        long patience = Long.parseLong(args[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder answers = new StringBuilder();
        ExecutorService worker = newWorker();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String query = line;
            Future<String> answer = worker.submit(() -> answer(query));
            try {
                answers.append(answer.get(patience, TimeUnit.SECONDS)).append('\n');
            } catch (TimeoutException e) {
                answers.append("HANGS\n");
                worker = newWorker();
            }
        }
        System.out.print(answers);
        System.out.flush();
        System.exit(0);
    }

    private static ExecutorService newWorker() {
        return Executors.newSingleThreadExecutor(body -> {
            Thread thread = new Thread(body);
            thread.setDaemon(true);
            return thread;
        });
    }

    private static String answer(String query) {
        String[] parts = query.split("\t", 4);
        CronExpression expression;
        try {
            expression = new CronExpression(parts[3]);
        } catch (ParseException e) {
            return "REFUSED";
        }
        expression.setTimeZone(TimeZone.getTimeZone(parts[0]));
        Date time = new Date(Long.parseLong(parts[1]) * 1000);
        StringBuilder times = new StringBuilder();
        try {
            for (int left = Integer.parseInt(parts[2]); left > 0; left--) {
                time = expression.getNextValidTimeAfter(time);
                if (time == null) {
                    return times.append("END").toString();
                }
                times.append(time.getTime() / 1000).append(' ');
            }
        } catch (RuntimeException e) {
            return "FAILED";
        }
        return times.toString().trim();
    }
}
