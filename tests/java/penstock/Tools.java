package penstock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.utils.Exit;

/** Runs the `main` of one of Kafka's console tools as its shell script would, with stdin, stdout and stderr of its own. */
final class Tools {
    private static final class Exited extends RuntimeException {
        private static final long serialVersionUID = 1;

        Exited() {
            super("exit", null, false, false);
        }
    }

    private Tools() {}

    static void run(JsonNode command, ObjectNode answer) throws Exception {
        String[] args = Driver.JSON.convertValue(command.get("args"), String[].class);
        byte[] input = command.path("stdin").asText("").getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        InputStream oldIn = System.in;
        // A tool may catch what the exit procedure throws and exit once more: the first status is the one that counts.
        AtomicReference<Integer> first = new AtomicReference<>();
        Exit.Procedure exit = (status, message) -> {
            first.compareAndSet(null, status);
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, runnable) -> { });
        try {
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            System.setIn(new ByteArrayInputStream(input));
            int status = call(command.get("main").asText(), args);
            answer.put("exit", first.get() == null ? status : first.get());
        } finally {
            System.out.flush();
            System.setOut(oldOut);
            System.setErr(oldErr);
            System.setIn(oldIn);
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
            Exit.resetShutdownHookAdder();
            answer.put("out", out.toString(StandardCharsets.UTF_8));
            answer.put("err", err.toString(StandardCharsets.UTF_8));
        }
    }

    private static int call(String main, String[] args) throws Exception {
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) args);
            return 0;
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Exited)) {
                failure.getCause().printStackTrace(System.err);
            }
            return 1;
        }
    }
}
